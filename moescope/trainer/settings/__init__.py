"""The sections of the trainer's configuration: each field documented, each rule checked with its key path."""
