"""Why a run failed: small pure rules over the metrics, samples and config of a run. No torch."""
