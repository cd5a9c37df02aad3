"""The settings that users change: they only prepare the policy of the next conversion."""

from actnn.core.policy import Config
from actnn.core.samples import SampleScheme

config = Config()
set_optimization_level = config.set_optimization_level

# the original's two names for the samples of the next batch
QScheme = SampleScheme()
QBNScheme = QScheme
