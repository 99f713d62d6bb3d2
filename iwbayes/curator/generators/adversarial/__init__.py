"""Adversarial generators: GAN, CGAN and their private forms."""
