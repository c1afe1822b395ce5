"""What this host has and lacks for building, for tuning and for serving.

`examining` puts the parts together; `probing` asks whatever may be broken in processes of their
own, so that a library that crashes or hangs is one more finding.
"""
