"""What the parts are to each other: start sources, engines and judges."""
