"""What compressed layers do in every framework; a front end adds its own functions and the plain layer's names."""
