"""What an agent does with measured speeds: the job's own size, and slow workers."""
