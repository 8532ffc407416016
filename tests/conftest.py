"""What all tests share."""

from hypothesis import HealthCheck, settings

# How long an example takes to draw says how busy the machine is, and nothing of the code.
settings.register_profile("regraft", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("regraft")
