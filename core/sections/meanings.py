"""What TRL, verl, OpenRLHF and others call our fields, for the hint about an unknown name. `core/load.py` reads it.

Invariant: a name with dots stands for the end of a longer one (`actor_rollout_ref.actor.optim.lr` is `lr`, but
`critic.optim.lr` is the critic's).
"""

from collections.abc import Mapping

TRL_ARGUMENTS = "lr learning_rate epochs num_train_epochs batch_size per_device_train_batch_size max_length"
MEANINGS: Mapping[str, str] = {
    "sft.arguments": TRL_ARGUMENTS,
    "reward_model.arguments": TRL_ARGUMENTS,
    "run.name": "run_name experiment_name trainer.experiment_name wandb_run_name exp_name",
    "run.root": "output_dir save_path ckpt_path default_local_dir logging_dir",
    "run.seed": "data_seed random_seed",
    "run.iterations": "steps max_steps total_steps num_episodes total_epochs total_training_steps total_episodes",
    "run.checkpoint_every": "save_steps save_freq save_every save_strategy save_interval",
    "run.keep_checkpoints": "save_total_limit max_actor_ckpt_to_keep max_critic_ckpt_to_keep max_ckpt_num",
    "model.path": "model pretrain model_name model_name_or_path actor_model ref_model reference_model tokenizer",
    "model.dtype": "bf16 fp16 torch_dtype data_type model_dtype param_dtype precision model_init_kwargs",
    "task.path": "dataset data prompt_data train_files dataset_name train_dataset train_data",
    "task.eval_path": "val_files eval_dataset test_files val_data eval_data",
    "task.columns.prompt": "prompt_key input_key question_key",
    "task.columns.answer": "label_key answer_key ground_truth_key reward_fn_key",
    "task.template": "input_template prompt_template",
    "task.system": "system_prompt system_message",
    "task.operations": "min_operations max_operations",
    "task.reward": (
        "reward_function reward_fn reward_func reward_funcs custom_reward_function custom_reward_function.path "
        "custom_reward_function.name compute_score remote_rm_url"
    ),
    "task.rewards": "reward_weights reward_functions",
    "task.problems": "train_max_samples max_samples max_train_samples",
    "task.judge_workers": "reward_manager num_processes num_examine",
    "task.sampling": "shuffle shuffle_dataset sampler curriculum",
    "rollout.starts": (
        "batch_size rollout_batch_size train_batch_size gen_batch_size generation_batch_size num_prompts_per_step"
    ),
    "rollout.samples": (
        "n rollout.n n_samples n_samples_per_prompt num_generations group_size rloo_k num_return_sequences "
        "num_generations_per_prompt"
    ),
    "rollout.max_prompt_tokens": (
        "max_prompt_length prompt_max_len filter_overlong_prompts max_length max_seq_length max_len max_model_len"
    ),
    "rollout.max_response_tokens": (
        "max_tokens max_new_tokens max_response_length max_completion_length generate_max_len response_length"
    ),
    "rollout.temperature": "gen_temperature",
    "rollout.sampling_options": "top_k min_p repetition_penalty min_new_tokens generation_kwargs ignore_eos stop",
    "rollout.engine_options": (
        "enforce_eager max_num_batched_tokens enable_chunked_prefill engine_kwargs quantization attention_backend"
    ),
    "rollout.max_running": "max_num_seqs eval_batch_size val_batch_size per_device_eval_batch_size",
    "rollout.gpu_memory_share": "gpu_memory_utilization vllm_gpu_memory_utilization vllm_gpu_memory_utilisation",
    "rollout.tensor_parallel": (
        "tensor_parallel_size vllm_tensor_parallel_size tensor_model_parallel_size tp_size tensor_parallelism"
    ),
    "rollout.sleep": "enable_sleep_mode vllm_enable_sleep free_cache_engine vllm_enable_sleep_mode",
    "cluster.colocate": "colocate_all_models vllm_mode",
    "rollout.actors": "num_engines vllm_num_engines workers num_workers num_rollout_workers",
    "rollout.resample": (
        "dynamic_sampling filter_groups filter_groups.enable filter_groups.max_num_gen_batches max_num_gen_batches "
        "dynamic_filtering use_dynamic_sampling"
    ),
    "rollout.max_staleness": "staleness_threshold async_train max_off_policy_steps async_training",
    "rollout.environment": "multi_turn multi_turn.enable tools tool_config_path agent_func_path environment_factory",
    "rollout.max_turns": "max_assistant_turns max_user_turns max_tool_calling_iterations",
    "replay.ratio": "share fraction replay_ratio replay_share replay_fraction",
    "algorithm.estimator": ("advantage_estimator adv_estimator scale_rewards norm_adv_by_std_in_grpo advantage"),
    "algorithm.policy_loss": "importance_sampling_level loss_mode policy_loss.loss_mode policy_loss_type",
    "algorithm.aggregation": "loss_agg_mode loss_type loss_aggregation token_level_loss",
    "algorithm.normalise": "whiten_rewards normalize_advantage norm_adv normalize_advantages whiten_advantages",
    "algorithm.clip_low": (
        "clip clip_ratio clip_range cliprange eps_clip epsilon clip_ratio_low epsilon_low eps_clip_low clip_eps"
    ),
    "algorithm.clip_high": "epsilon_high clip_ratio_high eps_clip_high clip_higher",
    "algorithm.dual_clip": "delta clip_ratio_c dual_clip_ratio",
    "algorithm.value_clip": "cliprange_value value_clip_range",
    "algorithm.entropy_coefficient": "entropy_coef entropy_coeff ent_coef entropy_bonus entropy_loss_coef",
    "algorithm.kl_coefficient": ("kl_coef init_kl_coef kl_loss_coef beta use_kl_loss kl_loss_weight use_kl kl_beta"),
    "algorithm.kl_estimator": "kl_loss_type kl_penalty kl_penalty_type kl_type",
    "algorithm.kl_placement": "use_kl_in_reward kl_in_reward",
    "algorithm.kl_target": "target_kl kl_ctrl.target_kl adap_kl_ctrl kl_horizon",
    "algorithm.kl_schedule": "kl_ctrl kl_ctrl.type kl_ctrl_type",
    "algorithm.policy_lambda": "lam lambd gae_lambda",
    "algorithm.importance": (
        "vllm_importance_sampling_correction rollout_is enable_vllm_is_correction vllm_importance_sampling_mode "
        "rollout_correction tis_level"
    ),
    "algorithm.importance_cap": (
        "tis_imp_ratio_cap vllm_importance_sampling_cap rollout_is_threshold vllm_is_truncated_threshold is_cap "
        "truncated_importance_sampling_ratio"
    ),
    "algorithm.overlong": (
        "mask_truncated_completions overlong_buffer overlong_buffer_len overlong_buffer.len overlong_penalty_factor "
        "overlong_buffer.enable overlong_filtering missing_eos_penalty"
    ),
    "learner.ranks": "n_gpus_per_node nnodes actor_num_gpus_per_node actor_num_nodes num_gpus world_size",
    "learner.zero_stage": "deepspeed zero fsdp deepspeed_config strategy",
    "learner.offload": "adam_offload param_offload optimizer_offload cpu_offload",
    "learner.gradient_checkpointing": "enable_gradient_checkpointing activation_checkpointing",
    "learner.value_model": "critic critic_model share_critic",
    "learner.value_path": "critic.model.path critic_pretrain critic_model_path value_model_path",
    "learner.value_coefficient": "vf_coef value_coef value_loss_coef",
    "learner.lora_rank": "lora_r peft_config use_peft lora use_lora r",
    "learner.policy_lr": ("lr learning_rate actor_lr actor_learning_rate policy_learning_rate actor.optim.lr optim.lr"),
    "learner.value_lr": (
        "critic_lr critic_learning_rate value_learning_rate critic.optim.lr critic.lr value.lr vf_learning_rate"
    ),
    "learner.epochs": "ppo_epochs num_ppo_epochs num_train_epochs max_epochs num_iterations update_epochs",
    "learner.minibatches": (
        "mini_batch_size ppo_mini_batch_size num_mini_batches steps_per_generation num_minibatches minibatch_size"
    ),
    "learner.micro_batch_tokens": (
        "micro_batch_size micro_train_batch_size per_device_train_batch_size gradient_accumulation_steps "
        "ppo_micro_batch_size ppo_micro_batch_size_per_gpu ppo_max_token_len_per_gpu micro_rollout_batch_size "
        "log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu use_dynamic_bsz train_micro_batch_size "
        "log_prob_max_token_len_per_gpu"
    ),
    "learner.max_grad_norm": "max_norm grad_clip clip_grad gradient_clipping clip_grad_norm",
    "learner.warmup_steps": "warmup_ratio lr_warmup_steps lr_warmup_steps_ratio lr_warmup_ratio num_warmup_steps",
    "learner.schedule": "lr_scheduler lr_scheduler_type warmup_style lr_decay_style",
    "learner.adam_beta2": "adam_betas betas beta2",
    "learner.adam_epsilon": "adam_eps optim_eps",
    "learner.critic_warmup": "trainer.critic_warmup freezing_actor_steps value_pretrain_steps",
    "learner.transport": "vllm_sync_backend weight_sync_backend sync_backend",
    "evaluation.every": "eval_steps eval_every test_freq eval_strategy evaluation_strategy val_freq val_period",
    "evaluation.samples": "val_kwargs.n eval_n_samples_per_prompt num_generations_eval n_eval",
    "evaluation.temperature": "eval_temperature val_kwargs.temperature",
    "reward_model.path": "reward_model_path reward_pretrain reward_model.model.path rm_path",
    "monitor.sinks": "report_to logger loggers log_with use_wandb use_tensorboard trainer.logger use_mlflow",
    "monitor.project": "wandb_project project_name trackio_project",
}
"""By field, what others call it."""
WITHOUT: Mapping[str, str] = {
    "it is always so": (
        "use_vllm val_before_train apply_chat_template log_completions remove_padding use_remove_padding "
        "disable_dropout packing packing_samples log_samples"
    ),
    "every linear layer gets adapters": "target_modules lora_target_modules lora_dropout",
    "`retrospect train --resume RUN` continues a run": "resume_from_checkpoint resume_mode load_checkpoint resume_path",
    "`retrospect export RUN --to hub:OWNER/NAME` uploads a policy": "push_to_hub hub_model_id hub_strategy",
    "every iteration is logged": "logging_steps log_freq logging_strategy logging_first_step log_every",
    "the reference is the policy that training starts from": "sync_ref_model ref_model_sync_steps",
    "models with code of their own are not loaded": "trust_remote_code",
    "vLLM generates": "rollout.name inference_backend rollout_backend",
    "the learner reads prefix trees by an attention of its own": (
        "flash_attn attn_implementation use_liger_loss use_liger_kernel"
    ),
    "AdamW trains, with a first beta of 0.9": "optim optimizer adam_beta1 beta1",
    "weights do not decay: at a rate of 1e-6 a decay of 0.1 changes them by 1e-7 of themselves in a step": (
        "weight_decay l2"
    ),
    "`retrospect check --gpus 8` plans for a machine of 8 GPUs": "cluster.gpus",
    "a pair has the columns chosen and rejected, as in TRL": (
        "reward_model.chosen reward_model.rejected chosen_key rejected_key"
    ),
    "a rollout actor that answers nothing for 10 minutes counts as hung": "rollout.deadline",
    "an outcome weighs 0.95 after one more visit of its problem": "replay.decay",
}
"""Why a setting of others has no field here, with its names."""
