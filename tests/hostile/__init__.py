"""What an attacker sends: corpora that tests of every way in share."""
