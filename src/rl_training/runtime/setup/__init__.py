"""What is prepared and checked before a run starts or goes on."""
