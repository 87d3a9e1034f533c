// Types of the peers: servers that are compared with Jindou in the overview. Each peer is one file
// in this folder. bench/README.md describes how to add one.

import type { Opening } from "../support/load.ts";
import type { Server } from "../support/servers.ts";
import type { Workbench } from "../support/workbench.ts";

/** A workload. */
export type Work =
  /** A message that is published over HTTP or by a client reaches all members of a group. */
  | { readonly kind: "fanout"; readonly members: number; readonly via: "http" | "socket" }
  /** An HTTP call sends a message and waits for the reply. Jindou stores the message first. */
  | { readonly kind: "post" }
  /**
   * A client sends a message and waits for the acknowledgement. Jindou stores the message first.
   */
  | { readonly kind: "send"; readonly connections: number }
  /** Clients connect, log in and stay idle. */
  | { readonly kind: "connect"; readonly clients: number }
  /** Clients of one group reconnect and receive the messages that they missed. */
  | { readonly kind: "resume"; readonly clients: number; readonly missed: number }
  /**
   * Clients of one group connect while an AI reply is being written, and receive its text so far.
   */
  | { readonly kind: "late"; readonly clients: number; readonly chunks: number };

/** Returns true if the peer must keep the messages that a client missed. */
export function needsHistory({ kind }: Work): boolean {
  return kind === "resume" || kind === "late";
}

/** A started peer, with the bytes that its clients send in one workload. */
export interface Contender {
  /**
   * The server, or the nodes over which clients and calls are spread. The pid of a server that runs
   * elsewhere is 0.
   */
  readonly servers: readonly Server[];
  /** First bytes that a client's connection sends. */
  readonly opening: Opening;
  /**
   * Returns the HTTP request or the frame for one message. The message's id differs in each run, so
   * that no message counts as a retry. Called only for `fanout`, `post` and `send`.
   */
  message(): Uint8Array;
  /** First bytes of a delivery or an acknowledgement on a socket. */
  readonly replyStart: Uint8Array;
  /** True if a frame may contain several deliveries, each with the bytes of `replyStart`. */
  readonly isPacked?: boolean;
  /** First bytes that the publishing client sends if a fan-out is published over a socket. */
  readonly publishOpening?: Opening;
}

export interface PeerSetting {
  readonly workbench: Workbench;
  readonly payload: Uint8Array;
}

export interface Peer {
  /** Name for `--peers`, such as `ws`. */
  readonly name: string;
  /** Name and version. */
  readonly title: string;
  /** Features that this peer lacks, such as durable storage. Empty for Jindou. */
  readonly lacks: readonly string[];
  /** True if the peer supports the workloads `resume` and `late`. */
  readonly keepsHistory?: true;
  /** Returns how to install the peer, or `undefined` if it is installed on this machine. */
  missing(): string | undefined;
  /** Starts the peer for one workload. Returns `undefined` if the peer does not support it. */
  start(setting: PeerSetting, work: Work): Promise<Contender | undefined>;
}

/** Features that a server lacks if it only forwards bytes. */
export const FORWARDS_ONLY = ["durability", "order after a reconnect", "resume", "permissions"];
