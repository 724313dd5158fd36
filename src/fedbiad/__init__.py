"""fedbiad."""
