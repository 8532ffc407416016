"""Options of one compilation: one frozen, typed object, and all that says what they are.

environment.py     the few environment variables
checks.py          errors that name what is valid
fields.py          the options, in groups; how they are parsed
configurations.py  modes and templates: sets of values that have a name
resolve.py         which value wins: overrides > what is given > template > mode > default
rules.py           the rule set that option `rules` asks for
listing.py         options, modes and templates as data, with documentation, defaults and values
machine.py         what of a configuration this machine cannot do, and why
"""

from .checks import OptionError
from .environment import cache_dir, compiler_setting, debug_dir
from .fields import Mode, Options
from .listing import list_modes, list_options, list_templates

__all__ = [
    "Mode",
    "OptionError",
    "Options",
    "cache_dir",
    "compiler_setting",
    "debug_dir",
    "list_modes",
    "list_options",
    "list_templates",
]
