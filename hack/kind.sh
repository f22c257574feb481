#!/usr/bin/env bash
# Tidegate in a kind cluster, for those who have Docker: builds the image, creates the cluster `tidegate` unless it
# exists, loads the image, installs config/, and lets workers read Secrets of `default`.
# Not part of the tests of this repository, which run without Docker; see docs/tasks/install.md.
set -euo pipefail
cd "$(dirname "$0")/.."

cluster=tidegate
image="tidegate:$(sed -n 's/^ *newTag: //p' config/base/kustomization.yaml)"

for tool in docker kind kubectl; do
  command -v "$tool" >/dev/null || { echo "$tool is needed and was not found on PATH" >&2; exit 1; }
done

docker build --tag "$image" .
kind get clusters | grep -qx "$cluster" || kind create cluster --name "$cluster"
kind load docker-image "$image" --name "$cluster"

kubectl config use-context "kind-$cluster"
kubectl apply -k config/crd
kubectl wait --for=condition=Established --timeout=60s crd/inferencebatchjobs.tidegate.dev crd/modeldeployments.tidegate.dev
kubectl apply -k config
kubectl apply -k config/examples/opted-in-namespace
kubectl -n tidegate-system rollout status statefulset/tidegate-redis deployment/tidegate-operator deployment/tidegate-worker --timeout=180s

echo "Tidegate runs in the kind cluster \"$cluster\". Remove it with: kind delete cluster --name $cluster"
