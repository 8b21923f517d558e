"""`launch.py completion bash|zsh`: prints the script with which a shell completes the console script `retrospect`.

Called by `launch.py`. The commands and options are those of `commands/options.py`; file names complete values.
"""

from argparse import Namespace

from commands.options import COMMANDS, command_parser

SCRIPT = """\
_retrospect() {{
    local words="{commands}"
    [ "$COMP_CWORD" -gt 1 ] && case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _retrospect retrospect
"""
ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def print_completion(options: Namespace) -> int:
    """Print the script; `eval "$(/path/to/.venv/bin/retrospect completion bash)"` in ~/.bashrc loads it."""
    cases = [f'        {name}) words="{" ".join(command_parser(name).options())}" ;;' for name in COMMANDS]
    script = SCRIPT.format(commands=" ".join(COMMANDS), cases="\n".join(cases))
    print((ZSH if options.shell == "zsh" else "") + script, end="")
    return 0
