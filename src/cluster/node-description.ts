// The description that a node publishes about itself.

import type { ImportPhase, NodeInfo } from "../broker/ports.ts";

export interface NodeDetails {
  readonly nodeId: string;
  readonly clientAddress: string;
  readonly tcpAddress: string;
  readonly version: string;
  readonly startedAtMs: number;
  readonly isDraining: () => boolean;
  readonly sessions: () => number;
  /** Returns the import phase that the node has adopted. The default is `none`. */
  readonly importPhase?: () => ImportPhase;
}

const NEW_READING_WEIGHT = 0.3;
/** Minimum time between two readings. CPU usage measured over a shorter time is too inaccurate. */
const MIN_INTERVAL_MS = 100;

export function createNodeDescription(details: NodeDetails): () => NodeInfo {
  const load = createLoadMeter();
  return () => ({
    nodeId: details.nodeId,
    clientAddress: details.clientAddress,
    tcpAddress: details.tcpAddress,
    version: details.version,
    startedAtMs: details.startedAtMs,
    sessions: details.sessions(),
    load: load(),
    isDraining: details.isDraining(),
    importPhase: details.importPhase?.() ?? "none",
  });
}

function createLoadMeter(): () => number {
  let readAtMs = performance.now();
  let usage = process.cpuUsage();
  let load = 0;
  return () => {
    const elapsedMs = performance.now() - readAtMs;
    if (elapsedMs < MIN_INTERVAL_MS) return load;
    const { user, system } = process.cpuUsage(usage);
    readAtMs += elapsedMs;
    usage = process.cpuUsage();
    const reading = Math.min(1, (user + system) / 1000 / elapsedMs);
    load = round(load + (reading - load) * NEW_READING_WEIGHT);
    return load;
  };
}

const round = (share: number): number => Math.round(share * 1000) / 1000;
