"""The settings that users change: they only prepare the policy of the next conversion."""

from actnn.core.policy import Config

config = Config()
set_optimization_level = config.set_optimization_level
