"""What the environment tells the processes of a recorded program."""

MANAGER = "ssd_aot.recording.cache_manager:RecordingCacheManager"
"""As `TRITON_CACHE_MANAGER` names it."""
JOURNAL = "SSD_AOT_RECORD"
"""Names the folder that each process of a recorded program writes a file into."""
INNER = "SSD_AOT_RECORDED_MANAGER"
"""The cache manager that the program would have had, where it asked for one."""
