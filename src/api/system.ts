// The process itself: alive, ready, metrics, migration. State: none.

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

export interface SystemParts {
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
