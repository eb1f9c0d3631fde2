"""Commands about a root as a whole, or about two roots; `relive.cli.publish` lists them."""
