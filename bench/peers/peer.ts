// Types of the peers: servers that do the same work as Jindou in the overview. Each peer is one file
// of this folder. bench/README.md describes how to add one.

import type { Opening } from "../support/load.ts";
import type { Server } from "../support/servers.ts";
import type { Workbench } from "../support/workbench.ts";

/** Work that every peer may do. */
export type Work =
  /** A message reaches all members of a group, published over HTTP or by a client. */
  | { readonly kind: "fanout"; readonly members: number; readonly via: "http" | "socket" }
  /** An HTTP call sends a message and is answered. Jindou stores the message first. */
  | { readonly kind: "post" }
  /** A client sends a message and gets an acknowledgement. Jindou stores the message first. */
  | { readonly kind: "send"; readonly connections: number }
  /** Clients connect, log in and stay idle. */
  | { readonly kind: "connect"; readonly clients: number }
  /** Clients of one group connect again and get the messages that they missed, each 200 bytes. */
  | { readonly kind: "resume"; readonly clients: number; readonly missed: number }
  /** Clients of one group connect while an AI answer is written, and get its text so far. */
  | { readonly kind: "late"; readonly clients: number; readonly chunks: number };

/** Returns true if the peer must keep the messages that a client missed. */
export function needsHistory({ kind }: Work): boolean {
  return kind === "resume" || kind === "late";
}

/** A started peer with the bytes of one work. */
export interface Contender {
  /**
   * The server, or the nodes over which clients and calls are spread. The pid of a server that runs
   * elsewhere is 0.
   */
  readonly servers: readonly Server[];
  /** First bytes that a client's connection sends. */
  readonly opening: Opening;
  /**
   * Returns the HTTP request or frame of one message, with an id that no other run has, so that no
   * message counts as a retry. Called only for `fanout`, `post` and `send`.
   */
  message(): Uint8Array;
  /** First bytes of a delivery or an acknowledgement on a socket. */
  readonly replyStart: Uint8Array;
  /** True if a frame may have several deliveries, each with the bytes of `replyStart`. */
  readonly isPacked?: boolean;
  /** First bytes from the client that publishes in a fan-out over a socket. */
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
  /** What the figures of this peer do not include, such as durability. Empty for Jindou. */
  readonly lacks: readonly string[];
  /** True if the peer can do the works `resume` and `late`. */
  readonly keepsHistory?: true;
  /** Returns how to get the peer if this machine does not have it, otherwise `undefined`. */
  missing(): string | undefined;
  /** Starts the peer for one work. Returns `undefined` if the peer cannot do the work. */
  start(setting: PeerSetting, work: Work): Promise<Contender | undefined>;
}

/** What a server does not do that only forwards bytes. */
export const FORWARDS_ONLY = ["durability", "order after a reconnect", "resume", "permissions"];
