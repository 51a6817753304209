"""Off-policy evaluation: estimates of a policy's value from data that other policies have collected."""
