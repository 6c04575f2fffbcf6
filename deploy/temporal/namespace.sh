#!/bin/sh
# Create the namespace and register the search attributes given as arguments. Safe to run again: what exists is kept,
# and the retention is set to the given one. The server comes from TEMPORAL_ADDRESS and TEMPORAL_NAMESPACE.
set -eu

attempts=60
until temporal operator cluster health >/dev/null 2>&1; do
  attempts=$((attempts - 1))
  if [ "$attempts" -eq 0 ]; then
    echo "Temporal at $TEMPORAL_ADDRESS does not answer." >&2
    exit 1
  fi
  sleep 1
done

if temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" >/dev/null 2>&1; then
  temporal operator namespace update --namespace "$TEMPORAL_NAMESPACE" --retention "$RETENTION"
else
  temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention "$RETENTION"
fi

# A new namespace is not known everywhere at once.
attempts=30
for name in "$@"; do
  # `Name` is a keyword; `Name=Type` is of another type.
  kind=Keyword
  case "$name" in *=*) kind=${name#*=} name=${name%%=*} ;; esac
  until temporal operator search-attribute create --name "$name" --type "$kind"; do
    attempts=$((attempts - 1))
    if [ "$attempts" -eq 0 ]; then
      echo "Search attribute $name could not be registered." >&2
      exit 1
    fi
    sleep 1
  done
done
