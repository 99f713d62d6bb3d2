"""Adversarial generators: GAN, CGAN, and their private versions DPGAN and DPCGAN."""
