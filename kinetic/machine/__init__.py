"""What this computer is: processor, memory and how fast it reads, GPUs, disk."""
