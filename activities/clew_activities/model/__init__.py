"""Activities that call models: the reply to a context, a summary, and the profile of a model."""
