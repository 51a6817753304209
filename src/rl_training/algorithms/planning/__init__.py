"""What the planning algorithms share: parameters, batches and their targets, unrolled losses, models to search in."""
