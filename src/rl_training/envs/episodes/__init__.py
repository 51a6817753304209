"""What is counted of episodes: real returns and lengths, and metrics of the environment itself."""
