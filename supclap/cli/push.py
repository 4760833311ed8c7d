"""`supclap push`: a checkpoint to the Hub as one commit."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="folder of a saved model")
    parser.add_argument("repo", help="owner/name on the Hub; made if it does not exist")
    parser.add_argument("--private", action="store_true", default=None, help="make a new repository private")
    parser.add_argument("--revision", help="branch to commit to, made if it does not exist")
    parser.add_argument("--create-pr", action="store_true", help="open a pull request instead of committing")
    parser.add_argument("--message", default="Upload SupCLAP model", help="message of the commit")
    parser.add_argument("--license", help="license of the weights; refused where the parts forbid it")


def run(arguments: argparse.Namespace) -> None:
    from supclap.publishing.hub import push_checkpoint

    commit = push_checkpoint(
        arguments.checkpoint,
        arguments.repo,
        private=arguments.private,
        revision=arguments.revision,
        create_pr=arguments.create_pr,
        message=arguments.message,
        license=arguments.license,
    )
    print(commit.pr_url or commit.commit_url)
