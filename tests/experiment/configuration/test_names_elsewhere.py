"""What users of Stable-Baselines3, RL Zoo and CleanRL write is answered by our name for it, for every algorithm."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, validate_config
from rl_training.experiment.configuration.env_params import WRAPPER_KEYS
from rl_training.experiment.configuration.names_elsewhere import PARAMETERS, WHOLE_CONFIGURATION
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec

TOP_LEVEL = {field.name for field in dataclasses.fields(TrainConfig)}
# Every argument of the constructors of SB3's (and sb3-contrib's) A2C, PPO, DQN, QR-DQN, SAC, TQC, CrossQ, TD3, DDPG, of
# their policies, and of CleanRL's scripts.
SB3 = """learning_rate n_steps batch_size n_epochs gamma gae_lambda clip_range clip_range_vf normalize_advantage
    ent_coef vf_coef max_grad_norm use_sde sde_sample_freq use_sde_at_warmup target_kl stats_window_size tensorboard_log
    policy policy_kwargs net_arch activation_fn ortho_init log_std_init optimizer_class optimizer_kwargs rms_prop_eps
    use_rms_prop features_extractor_class features_extractor_kwargs verbose seed device env buffer_size learning_starts
    tau train_freq gradient_steps action_noise replay_buffer_class replay_buffer_kwargs optimize_memory_usage
    target_update_interval target_entropy exploration_fraction exploration_initial_eps exploration_final_eps
    policy_delay target_policy_noise target_noise_clip top_quantiles_to_drop_per_net n_critics n_quantiles
    n_sampled_goal goal_selection_strategy monitor_wrapper n_envs n_timesteps"""
CLEANRL = """exp_name torch_deterministic cuda track wandb_project_name wandb_entity capture_video save_model env_id
    total_timesteps num_envs num_steps anneal_lr num_minibatches update_epochs norm_adv clip_coef clip_vloss
    start_e end_e train_frequency target_network_frequency policy_lr q_lr policy_frequency alpha autotune noise_clip
    policy_noise exploration_noise n_atoms v_min v_max target_entropy_scale minibatch_size upload_model hf_entity"""
# Every key of RL Zoo's hyperparameter files, and the flags of its `train`.
RL_ZOO = """n_timesteps n_envs policy policy_kwargs normalize frame_stack env_wrapper vec_env_wrapper callback
    algo env_kwargs monitor_kwargs noise_type noise_std train_freq gradient_steps replay_buffer_class
    replay_buffer_kwargs env tensorboard_log trained_agent num_threads log_interval eval_freq eval_episodes n_eval_envs
    save_freq save_replay_buffer log_folder seed vec_env device eval_env_kwargs hyperparams conf_file uuid track
    wandb_project_name wandb_entity wandb_group wandb_tags progress verbose
    optimize_hyperparameters n_trials max_total_trials sampler pruner n_startup_trials n_evaluations storage
    study_name"""


def messages(algo: str, **changes: Any) -> tuple[str, ...]:
    raw = {"algo": algo, "env_id": "X-v0", "seed": 0, "total_timesteps": 10**6, "output_dir": "runs", **changes}
    if get_algorithm_spec(algo).loop == "offline":
        raw["dataset"] = "some/data-v0"
    with pytest.raises(ConfigError) as refused:
        validate_config(raw)
    return refused.value.problems


def message(algo: str, **changes: Any) -> str:
    (sentence,) = messages(algo, **changes)
    return sentence


def fields_of(algo: str) -> set[str]:
    return {field.name for field in dataclasses.fields(get_algorithm_spec(algo).load_params())}


def named_keys(sentence: str) -> list[str]:
    return re.findall(r"`([^`]+)`", sentence)


def assert_keys_are_real(sentence: str, algo: str) -> None:
    for key in named_keys(sentence):
        head, _, rest = key.partition(".")
        if head == "env_kwargs" and rest:
            assert rest in WRAPPER_KEYS, sentence
        elif head == "algo_kwargs" and rest:
            assert rest in fields_of(algo), sentence
        else:
            assert key in fields_of(algo) or head in TOP_LEVEL or key.startswith("axiomrl "), sentence


@pytest.mark.parametrize("algo", sorted(ALGORITHMS))
def test_every_name_is_answered_by_a_key_or_a_repair(algo: str) -> None:
    names = dict.fromkeys([*SB3.split(), *CLEANRL.split(), *RL_ZOO.split(), *PARAMETERS, *WHOLE_CONFIGURATION])
    unknown = [name for name in names if name not in fields_of(algo)]
    for name, sentence in zip(unknown, messages(algo, algo_kwargs=dict.fromkeys(unknown, 1)), strict=True):
        assert sentence.startswith(f"algo_kwargs.{name}: unknown key; "), sentence
        assert "valid keys" not in sentence
        assert "did you mean" not in sentence, sentence
        assert "\n" not in sentence
        assert named_keys(sentence) or "leave it out" in sentence or "top level" in sentence, sentence
        assert_keys_are_real(sentence, algo)


@pytest.mark.parametrize("algo", sorted(ALGORITHMS))
def test_no_answer_stands_for_a_key_that_the_algorithm_has(algo: str) -> None:
    spec = get_algorithm_spec(algo)
    kind = str(spec.algorithm).rpartition(":")[2]
    for name in fields_of(algo) & PARAMETERS.keys():
        assert not PARAMETERS[name].keys() & {algo, kind, "all"}, name


@pytest.mark.parametrize(
    ("algo", "name", "sentence"),
    [
        ("ppo", "n_steps", "it is called `num_steps` here"),
        ("ppo", "batch_size", "it is called `minibatch_size` here"),
        ("a2c", "batch_size", "the whole rollout is one batch"),
        ("dqn", "n_steps", "it is called `n_step` here"),
        ("sac", "ent_coef", "it is called `temperature` here: a number, or auto to learn it"),
        ("dqn", "exploration_fraction", "set `epsilon_schedule` to {type: linear, end: 0.05, duration: 0.1}"),
        ("td3", "train_freq", "it is called `train_interval` here"),
        ("sac", "clip_range", "it is a setting of a2c, appo, impala, ppo, and sac has none like it: leave it out"),
        ("ppo", "buffer_size", "it is a setting of c51, crossq, ddpg, "),
        ("muzero", "net_arch", "it is called `hidden_size` here"),
        ("scalezero", "ent_coef", "it is called `entropy_coef` here"),
        ("ppo", "n_envs", "it is called `num_envs` here; it stands at the top level, outside algo_kwargs"),
        ("ppo", "total_timesteps", "it stands at the top level, outside algo_kwargs"),
        ("ppo", "frame_stack", "it describes the environment: write `env_kwargs.frame_stack`"),
        ("ppo", "env_wrapper", "name a function that returns the wrapped environment as `env_id` (path/to/"),
        ("ppo", "capture_video", "films during training are made by `video`, such as {interval: 50_000, episodes: 1}"),
        ("td3", "noise_std", "it is called `exploration_noise` here"),
        ("iql", "critic_learning_rate", "it is called `learning_rate` here"),
        ("cql", "n_action_samples", "it is called `action_samples` here"),
        ("td3_bc", "train_freq", "a step is a gradient step; leave it out"),
        (
            "td3",
            "critic_hidden_sizes",
            "it is a setting of cql, crossq, droq, redq, sac, tqc, and td3 has none like it: leave it out",
        ),
    ],
)
def test_some_answers_in_full(algo: str, name: str, sentence: str) -> None:
    assert message(algo, algo_kwargs={name: 1}).startswith(f"algo_kwargs.{name}: unknown key; {sentence}")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("env", "it is called `env_id` here"),
        ("n_envs", "it is called `num_envs` here"),
        ("learning_rate", "it is a setting of the algorithm: write `algo_kwargs.learning_rate`"),
        ("train_freq", "it is a setting of the algorithm, called `algo_kwargs.train_interval` here"),
        ("ent_coef", "it is a setting of the algorithm: it is called `temperature` here"),
        ("frame_stack", "it describes the environment: write `env_kwargs.frame_stack`"),
        ("callback", "it is called `callbacks` here"),
        ("log_folder", "it is called `output_dir` here"),
        ("vec_env", "choose by `execution_backend`: local_sync is one process (dummy), local_async worker processes"),
        ("normalize", "write `env_kwargs.normalize_observation` and `env_kwargs.normalize_reward`"),
    ],
)
def test_a_key_at_the_wrong_level_is_told_where_it_belongs(name: str, sentence: str) -> None:
    found = message("sac", **{name: 1})
    assert found.startswith(f"{name}: unknown key; {sentence}")
    assert_keys_are_real(found, "sac")


def test_a_key_at_the_top_level_without_an_algorithm_is_still_answered() -> None:
    raw = {"env_id": "X-v0", "seed": 0, "total_timesteps": 1, "output_dir": "runs", "n_envs": 3, "ent_coef": 0}
    with pytest.raises(ConfigError, match="n_envs: unknown key; it is called `num_envs` here"):
        validate_config(raw)


@pytest.mark.parametrize("value", ["lin_3e-4", "lin_0.0003"])
def test_a_linear_schedule_written_as_a_value_is_told_its_two_keys(value: str) -> None:
    number = value.removeprefix("lin_")
    assert message("ppo", algo_kwargs={"learning_rate": value}).endswith(
        f"; a linear schedule is two keys here, `learning_rate: {number}` and `learning_rate_schedule: linear`"
    )


def test_a_value_that_no_schedule_changes_gets_no_such_advice() -> None:
    assert "schedule" not in message("ppo", algo_kwargs={"gamma": "lin_0.99"})
