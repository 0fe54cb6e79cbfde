"""Pure builders of plans: from profile, cluster and facts to ordered steps."""
