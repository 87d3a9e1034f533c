// A node's description of itself for others. State: what its process had used of the processor when
// it was last asked.

import type { NodeInfo } from "../broker/ports.ts";

/** What a node knows of itself when it is made. */
export interface AboutNode {
  readonly nodeId: string;
  /** See `cluster.clientAddress`. */
  readonly clientAddress: string;
  readonly version: string;
  /** Unix milliseconds. */
  readonly startedAtMs: number;
  /** Asked each time: the node takes no new sessions, it is about to end. */
  readonly isDraining: () => boolean;
  /** Asked each time: how many sessions it serves. */
  readonly sessions: () => number;
}

/** Of two readings the newer one counts so much. */
const NEWER_SHARE = 0.3;
/** A shorter time says nothing. */
const MIN_READING_MS = 100;

/**
 * Makes the node's own description; `load` is over the time since it was last asked, smoothed over
 * a few askings.
 */
export function createNodeDescription(about: AboutNode): () => NodeInfo {
  const load = createLoadMeter();
  return () => ({
    nodeId: about.nodeId,
    clientAddress: about.clientAddress,
    version: about.version,
    startedAtMs: about.startedAtMs,
    sessions: about.sessions(),
    load: load(),
    isDraining: about.isDraining(),
  });
}

/** The share of one core that this process used lately, 0 to 1. */
function createLoadMeter(): () => number {
  let atMs = performance.now();
  let used = process.cpuUsage();
  let load = 0;
  return () => {
    const tookMs = performance.now() - atMs;
    if (tookMs < MIN_READING_MS) return load;
    const { user, system } = process.cpuUsage(used);
    atMs += tookMs;
    used = process.cpuUsage();
    const reading = Math.min(1, (user + system) / 1000 / tookMs);
    load = round(load + (reading - load) * NEWER_SHARE);
    return load;
  };
}

const round = (share: number): number => Math.round(share * 1000) / 1000;
