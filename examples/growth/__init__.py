"""A career platform in small: events that update projections, missions that call four services, stand-ins for them.

`REDRIVE_MODULES=redrive.examples.growth.pipelines` loads it; `redrive demo growth` shows it.
"""
