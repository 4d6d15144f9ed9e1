"""Every promise of ``StageEngine``, one test each; import ``*`` to run them in a suite.

The fixtures come with the plugin.
"""

from stagelink_conformance.promises.test_exactness import *  # noqa: F403
from stagelink_conformance.promises.test_hostile import *  # noqa: F403
from stagelink_conformance.promises.test_loading import *  # noqa: F403
from stagelink_conformance.promises.test_refusals import *  # noqa: F403
from stagelink_conformance.promises.test_state import *  # noqa: F403
from stagelink_conformance.promises.test_streams import *  # noqa: F403
