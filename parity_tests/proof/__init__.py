"""The prover checked: programs that are one function must be proven so, and changed ones refuted where they changed."""
