"""Random serving batches against a bundle's launches: whether serving can ask for one it lacks.

`promises` reads from a spec what may be served, `scheduling` makes the steps an engine's scheduler
makes, `drawing` turns them into batches, a `LaunchCode` says which launches each asks for, and
`shrinking` makes the smallest example of a miss. Nothing here reads the planner's scenarios
(`sources.batches`, `problems`): a check that shared them would repeat their mistakes.
"""
