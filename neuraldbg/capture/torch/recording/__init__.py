"""What a training does, kept so that any of its steps can be made again."""
