"""Calls, commands and values of Stable-Baselines3, RL Zoo and CleanRL with their counterparts here, in Markdown.

`names_elsewhere` has the keys that error messages answer; this is for readers of docs/migrating.md alone.
"""

from __future__ import annotations

Rows = tuple[tuple[str, str], ...]

SB3_CALLS: Rows = (
    (
        '`PPO("MlpPolicy", "CartPole-v1", seed=1, **kwargs).learn(100_000)`',
        '`train(TrainConfig(algo="ppo", env_id="CartPole-v1", seed=1, total_timesteps=100_000, '
        'output_dir="runs", algo_kwargs=kwargs))`, or `axiomrl train --algo ppo --env CartPole-v1`',
    ),
    (
        "`QRDQN`, `MaskablePPO` of sb3-contrib",
        "`qr_dqn`; all algorithms for discrete actions use [masks](environments.md#action-masks) where an environment "
        "gives them",
    ),
    (
        "`RecurrentPPO` of sb3-contrib",
        "`ppo` with `algo_kwargs.recurrent: {type: lstm, size: 64}` ([memory](algorithms/ppo.md#memory))",
    ),
    (
        "`TRPO`, `ARS`",
        "not here",
    ),
    (
        "`model.save`, `PPO.load`, `set_parameters`",
        "every run keeps [checkpoints](run-artifacts.md#checkpoints); `axiomrl resume --checkpoint RUN` goes on, "
        "`axiomrl train --init RUN` starts another run with the weights",
    ),
    (
        "`model.predict(obs)`, which returns a pair",
        "`load_policy(run_dir).predict(obs)`, which returns the action and normalises observations itself",
    ),
    (
        "`evaluate_policy(model, env, n_eval_episodes=20)`",
        "`evaluate(run_dir, num_episodes=20)`, or `axiomrl eval --checkpoint RUN --num-episodes 20`",
    ),
    (
        "`make_vec_env(id, n_envs=8)`, `DummyVecEnv`, `SubprocVecEnv`",
        "`num_envs: 8`, `execution_backend: local_sync` or `local_async`",
    ),
    (
        "`VecNormalize(norm_obs, norm_reward, clip_obs, clip_reward)`",
        "`env_kwargs`: `normalize_observation`, `normalize_reward`, `clip_observation`, `clip_reward`; the "
        "statistics are part of each checkpoint",
    ),
    (
        "`VecFrameStack(n_stack=4)`, `AtariWrapper`",
        "`env_kwargs`: `frame_stack: 4`; `atari: true` with `episodic_life`, `fire_reset` and `reward_sign`",
    ),
    (
        "`Monitor`, `VecMonitor`",
        "nothing: returns are always recorded",
    ),
    (
        "`EvalCallback`",
        "`eval_interval`, `eval_episodes`; the best policy is `checkpoints/best`",
    ),
    (
        "`CheckpointCallback`",
        "`checkpoint_interval`, `keep_checkpoints`",
    ),
    (
        "`StopTrainingOnRewardThreshold`, `StopTrainingOnNoModelImprovement`",
        "`early_stopping: {target: 475}`, `early_stopping: {patience: 5}`",
    ),
    (
        "a `BaseCallback` of your own",
        "[`Callback`](python-api.md#callbacks), or `callbacks: [path/to/file.py:Name]`",
    ),
    (
        "`VecVideoRecorder`",
        "`video: {interval: 50_000, episodes: 1}`, `axiomrl eval --video`",
    ),
    (
        "`HerReplayBuffer`",
        "`algo_kwargs.hindsight: future`",
    ),
    (
        "a features extractor of your own",
        "[`algo_kwargs.encoder`](extending.md#an-encoder)",
    ),
    (
        "`learning_rate=linear_schedule(3e-4)`",
        "`learning_rate: 3e-4` and `learning_rate_schedule: linear`",
    ),
)

RL_ZOO_KEYS: Rows = (
    (
        "`n_timesteps`, `n_envs`",
        "`total_timesteps`, `num_envs`",
    ),
    (
        "`policy: MlpPolicy`, `CnnPolicy`, `MultiInputPolicy`",
        "nothing: the kind of network follows from the observation space",
    ),
    (
        '`policy_kwargs: "dict(net_arch=[256, 256])"`',
        "`hidden_sizes: [256, 256]`; `net_arch=dict(pi=..., qf=...)` is `hidden_sizes` and `critic_hidden_sizes` (SAC)",
    ),
    (
        "`policy_kwargs`: `activation_fn`, `ortho_init`, `log_std_init`, `n_critics`, `n_quantiles`",
        "`activation: relu`, `orthogonal_init`, `log_std_init`, `num_critics`, `num_quantiles`",
    ),
    (
        "`normalize: true`",
        "`env_kwargs: {normalize_observation: true, normalize_reward: true}`",
    ),
    (
        '`normalize: "dict(norm_obs=True, norm_reward=False)"`',
        "`env_kwargs: {normalize_observation: true}`",
    ),
    (
        "`learning_rate: lin_3e-4`",
        "`learning_rate: 3e-4` and `learning_rate_schedule: linear`",
    ),
    (
        "`clip_range: lin_0.2`",
        "`clip_coef: 0.2` and `clip_coef_schedule: linear`",
    ),
    (
        "`frame_stack: 4`",
        "`env_kwargs: {frame_stack: 4}`",
    ),
    (
        "`env_wrapper: stable_baselines3...AtariWrapper`",
        "`env_kwargs: {atari: true, episodic_life: true, fire_reset: true, reward_sign: true}`",
    ),
    (
        "`env_wrapper: my_package.MyWrapper`",
        "a function that returns the wrapped environment, named as [`env_id: "
        "path/to/file.py:make`](environments.md#environments-of-your-own)",
    ),
    (
        "`env_kwargs: {...}`",
        "`env_kwargs: {...}`, for training and evaluation; the blocks `training:` and `evaluation:` in it hold what "
        "differs",
    ),
    (
        "`callback: [my_package.MyCallback]`",
        "`callbacks: [my_package:MyCallback]`",
    ),
    (
        "`train_freq: 8`, `gradient_steps: 8`",
        "`train_interval: 8`, `gradient_steps: 8` with one environment; `train_interval` counts the steps of all",
    ),
    (
        "`train_freq: [1, episode]`",
        "`train_interval: N`, counted in steps, and `gradient_steps: -1`",
    ),
    (
        "`noise_type: normal`, `noise_std: 0.1`",
        "`exploration_noise: 0.1`",
    ),
    (
        "`replay_buffer_class: HerReplayBuffer`, `replay_buffer_kwargs`",
        "`hindsight: future`, `hindsight_ratio`",
    ),
    (
        "`ent_coef: auto` (SAC, TQC)",
        "`temperature: auto`",
    ),
)

RL_ZOO_COMMANDS: Rows = (
    (
        "`rl_zoo3.train` for an environment of its files",
        "`axiomrl train --preset ppo-cartpole`; `axiomrl zoo` lists the presets",
    ),
    (
        "with its flags `eval_freq`, `save_freq`, `params`, `vec_env`, `n_timesteps`",
        "`--set eval_interval=10000`, `--set checkpoint_interval=10000`, `--set algo_kwargs.gamma=0.98`, "
        "`--execution-backend`, `--total-timesteps`",
    ),
    (
        "with `optimize_hyperparameters`, `n_trials`, `sampler`, `pruner`",
        "[`axiomrl tune`](tuning.md), whose best settings are confirmed on fresh seeds",
    ),
    (
        "with `trained_agent`",
        "`axiomrl import-sb3`, then `axiomrl resume`",
    ),
    (
        "`rl_zoo3.enjoy`, `rl_zoo3.record_video`",
        "`axiomrl eval --checkpoint RUN --video`",
    ),
    (
        "`rl_zoo3.plots`",
        "`axiomrl plot`, `axiomrl report`, `axiomrl leaderboard`: [reports](reports.md)",
    ),
    (
        "`rl_zoo3.push_to_hub`",
        "not here; [`axiomrl export`](export.md) writes one file that acts without PyTorch",
    ),
)

CLEANRL_CALLS: Rows = (
    (
        "`python cleanrl/ppo.py` with `env_id`, `total_timesteps`, `seed`",
        "`axiomrl train --algo ppo --env CartPole-v1 --total-timesteps 500000 --seed 1`",
    ),
    (
        "one file to read",
        "[examples/ppo_by_hand.py](../examples/ppo_by_hand.py) drives PPO without the trainer; "
        "[architecture](architecture.md) follows a step through the files",
    ),
    (
        "`c51`, `dqn_atari`, `sac_continuous_action`, `td3_continuous_action`, `ddpg_continuous_action`, "
        "`rainbow_atari`",
        "`c51`, `dqn`, `sac`, `td3`, `ddpg`, `rainbow`, on any environment whose spaces fit",
    ),
    (
        "`track`",
        "`tracking: {wandb: {}}`, offline unless its `mode` is online: [dashboards](tracking.md#dashboards)",
    ),
    (
        "`capture_video`",
        "`video: {interval: 50_000}`: [films](tracking.md#films-during-training)",
    ),
    (
        "`num_minibatches: 4`",
        "`minibatch_size`, which is `num_steps` * `num_envs` / 4",
    ),
    (
        "`anneal_lr`",
        "`learning_rate_schedule: linear`",
    ),
    (
        "`cleanrl_utils.benchmark`, `openrlbenchmark`",
        "`axiomrl train --seeds 1-5`, `axiomrl report`, `axiomrl leaderboard`",
    ),
    (
        "editing the script",
        "[`path/to/file.py:SPEC`](extending.md), a loss, a network or a callback of your own",
    ),
)
