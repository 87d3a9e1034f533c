// What a heartbeat carries: a node's record, and the cluster as the answer shows it. Pure.

import type { NodeInfo } from "../../broker/ports.ts";
import type { Life } from "./entry.ts";

/** The cluster as one node knows it. */
export interface View {
  readonly live: ReadonlyMap<Life, NodeInfo>;
  /** Their sessions are still in the directory and count as offline. */
  readonly dead: ReadonlySet<Life>;
}

export type Beat =
  | { readonly verdict: "dead" | "taken" }
  | {
      readonly verdict: "ok";
      readonly view: View;
      /** Dead lives whose sweep is this node's turn. */
      readonly mine: readonly Life[];
      /** Redis' clock, Unix milliseconds. */
      readonly redisMs: number;
    };

/** A node's record. Fields may be added; a reader ignores those it does not know. */
export function writeNode(node: NodeInfo): string {
  return JSON.stringify(node);
}

/** Reads the reply of `lua/heartbeat.lua`. */
export function readBeat(reply: unknown): Beat {
  const [said, nodes, dead, mine, redisMs] = reply as [
    Buffer,
    Buffer[]?,
    Buffer[]?,
    Buffer[]?,
    number?,
  ];
  const verdict = said.toString() as Beat["verdict"];
  if (verdict !== "ok") return { verdict };
  return {
    verdict,
    view: {
      live: new Map(readNodes(nodes ?? [])),
      dead: new Set((dead ?? []).map(String)),
    },
    mine: (mine ?? []).map(String),
    redisMs: Number(redisMs),
  };
}

function readNodes(pairs: readonly Buffer[]): readonly [Life, NodeInfo][] {
  return Array.from({ length: pairs.length / 2 }, (_, at) => {
    const [life, record] = pairs.slice(2 * at, 2 * at + 2).map(String);
    return [life ?? "", JSON.parse(record ?? "{}") as NodeInfo];
  });
}
