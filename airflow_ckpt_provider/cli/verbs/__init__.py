"""One module for each verb, loaded when it is used."""
