// The process itself: alive, ready, metrics, migration. State: none.

import type { Clock } from "../broker/ports.ts";
import { errorReply } from "./errors.ts";
import { JSON_HEADERS, jsonReply, OK_REPLY } from "./reply.ts";

/** Progress of the move of the data from another store [spec: Migration result]. */
interface MigrationResult {
  readonly status: "running" | "completed" | "migrated" | "failed";
  readonly step: string;
  readonly lastErr: string | null;
  readonly tryCount: number;
}

/** Whether the node takes work now; if not, `reason` is a sentence for people. */
interface Readiness {
  readonly ready: boolean;
  readonly reason: string;
}

/** The metrics page in Prometheus' text format; a prom-client Registry is one. */
interface MetricsPage {
  readonly contentType: string;
  metrics(): Promise<string>;
}

/** What this process is and does. */
interface Vitals {
  readonly nodeId: string;
  readonly version: string;
  readonly startedAtMs: number;
  /** Given to clients; "": none is. */
  readonly clientAddress: string;
  readonly connections: number;
  readonly sessions: number;
  /** Pushes to sessions since the start. */
  readonly deliveries: number;
}

export interface SystemParts {
  readonly vitals: () => Vitals;
  readonly clock: Clock;
  readonly migration: () => MigrationResult;
  readonly readiness: () => Promise<Readiness>;
  readonly metrics: MetricsPage;
}

const READY = jsonReply('{"status":"ready"}');

export function createSystemCalls(parts: SystemParts) {
  return {
    healthz: () => OK_REPLY,

    async readyz() {
      const { ready, reason } = await parts.readiness();
      return ready ? READY : errorReply("unavailable", { message: reason });
    },

    async health() {
      const { ready, reason } = await parts.readiness();
      return ready ? OK_REPLY : errorReply("unavailable", { message: reason });
    },

    varz() {
      const vitals = parts.vitals();
      const uptimeMs = parts.clock() - vitals.startedAtMs;
      const body = {
        server_id: vitals.nodeId,
        server_name: "Jindou",
        version: vitals.version,
        uptime: Math.max(0, Math.floor(uptimeMs / 1000)),
        connections: vitals.connections,
        sessions: vitals.sessions,
        out_msgs: vitals.deliveries,
        mem: process.memoryUsage.rss(),
        ws_addr: vitals.clientAddress,
      };
      return jsonReply(JSON.stringify(body));
    },

    async metrics() {
      const body = await parts.metrics.metrics();
      const headers = {
        ...JSON_HEADERS,
        "content-type": parts.metrics.contentType,
      };
      return { status: 200, headers, body };
    },

    migration() {
      const { status, step, lastErr, tryCount } = parts.migration();
      return jsonReply(
        JSON.stringify({
          status,
          step,
          last_err: lastErr,
          try_count: tryCount,
        }),
      );
    },
  };
}
