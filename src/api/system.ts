// Endpoints that report on the process itself: health, metrics, configuration, latest errors and
// migration.

import type { LoggedError } from "../observe/newest-errors.ts";
import type { HttpRequest } from "../transport/types.ts";
import { errorReply } from "./errors.ts";
import { notWebSocket, wantsWebSocket } from "./misdirected.ts";
import { redirectTo, wantsHtml } from "./pages.ts";
import { JSON_HEADERS, jsonReply, OK_REPLY } from "./reply.ts";

interface MigrationResult {
  readonly status: "running" | "completed" | "migrated" | "failed";
  readonly step: string;
  readonly lastErr: string | null;
  readonly tryCount: number;
}

interface Readiness {
  readonly ready: boolean;
  readonly reason: string;
}

interface MetricsPage {
  readonly contentType: string;
  metrics(): Promise<string>;
}

interface Vitals {
  readonly nodeId: string;
  readonly version: string;
  readonly uptimeMs: number;
  /** Address at which clients reach the node, empty if no address is configured. */
  readonly clientAddress: string;
  /**
   * Address for clients that connect over TCP without WebSocket. Empty if no address is configured.
   */
  readonly tcpAddress: string;
  readonly connections: number;
  readonly sessions: number;
  readonly deliveries: number;
}

/** A setting of the configuration. `value` is absent if it is secret. */
interface ShownSetting {
  readonly key: string;
  readonly value?: unknown;
  readonly isSet: boolean;
  readonly source: string;
  readonly description: string;
  readonly unit: string | undefined;
}

export interface SystemPorts {
  readonly nodeId: string;
  readonly newestErrors: () => readonly LoggedError[];
  readonly shownSettings: () => readonly ShownSetting[];
  readonly vitals: () => Vitals;
  readonly migration: () => MigrationResult;
  /** Text that says where clients connect: an address, or a port and its setting. */
  readonly clientsConnectTo: string;
  /** Path to which `GET /` redirects a browser, or `undefined` if no page is served. */
  readonly frontPage: string | undefined;
  readonly readiness: () => Promise<Readiness>;
  readonly metrics: MetricsPage;
}

const READY = jsonReply('{"status":"ready"}');

export function createSystemCalls(ports: SystemPorts) {
  const { headers, ...json } = jsonReply(
    JSON.stringify({
      service: "Jindou",
      message: `This is the HTTP API for backends. Clients connect by WebSocket to ${ports.clientsConnectTo}.`,
      openapi: "/openapi.json",
    }),
  );
  const index = { ...json, headers: { ...headers, vary: "accept" } };
  const toFrontPage = ports.frontPage === undefined ? undefined : redirectTo(ports.frontPage, 303);
  return {
    index(request: HttpRequest) {
      if (wantsWebSocket(request)) return notWebSocket(ports.clientsConnectTo);
      return wantsHtml(request) ? (toFrontPage ?? index) : index;
    },

    healthz: () => OK_REPLY,

    async readyz() {
      const { ready, reason } = await ports.readiness();
      return ready ? READY : errorReply("unavailable", { message: reason });
    },

    async health() {
      const { ready, reason } = await ports.readiness();
      return ready ? OK_REPLY : errorReply("unavailable", { message: reason });
    },

    varz() {
      const vitals = ports.vitals();
      const body = {
        server_id: vitals.nodeId,
        server_name: "Jindou",
        version: vitals.version,
        uptime: Math.floor(vitals.uptimeMs / 1000),
        connections: vitals.connections,
        sessions: vitals.sessions,
        out_msgs: vitals.deliveries,
        mem: process.memoryUsage.rss(),
        ws_addr: vitals.clientAddress,
        tcp_addr: vitals.tcpAddress,
      };
      return jsonReply(JSON.stringify(body));
    },

    async metrics({ method }: Pick<HttpRequest, "method">) {
      const body = method === "HEAD" ? "" : await ports.metrics.metrics();
      const headers = {
        ...JSON_HEADERS,
        "content-type": ports.metrics.contentType,
      };
      return { status: 200, headers, body };
    },

    config() {
      const settings = ports.shownSettings().map(({ isSet, ...setting }) => ({
        ...setting,
        is_secret: setting.value === undefined ? 1 : 0,
        is_set: isSet ? 1 : 0,
      }));
      const { version } = ports.vitals();
      return jsonReply(JSON.stringify({ node_id: ports.nodeId, version, settings }));
    },

    errors() {
      const errors = ports.newestErrors();
      return jsonReply(JSON.stringify({ node_id: ports.nodeId, errors }));
    },

    migration() {
      const { status, step, lastErr, tryCount } = ports.migration();
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
