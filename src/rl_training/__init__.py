"""AxiomRL: train reinforcement-learning agents on one machine.

Names are loaded on first use, so that `import rl_training` imports neither torch nor gymnasium.
"""
