// The part of the HTTP API for backends written for WuKongIM: a dialect, and routes that exist in
// every dialect.

import { type Dialect, JINDOU } from "../../api/dialect.ts";
import type { ApiRoute } from "../../api/route.ts";
import { createWukongimDialect, type WukongimPorts } from "./dialect.ts";
import { createSyncRoutes, type SyncPorts } from "./sync-routes.ts";

interface HttpSettings {
  readonly dialect: "jindou" | "wukongim";
  readonly maxSubscribersPerCall: number;
}

interface HttpParts {
  readonly dialect: Dialect;
  readonly moreRows: readonly ApiRoute[];
  /** The rows of `moreRows` in the `jindou` dialect, for calls that request this dialect. */
  readonly plainMoreRows: readonly ApiRoute[];
}

export function createWukongimHttp(
  ports: WukongimPorts & SyncPorts,
  { dialect, maxSubscribersPerCall }: HttpSettings,
): HttpParts {
  const isWukongim = dialect === "wukongim";
  return {
    dialect: isWukongim ? createWukongimDialect(ports, maxSubscribersPerCall) : JINDOU,
    moreRows: createSyncRoutes(ports, isWukongim),
    plainMoreRows: createSyncRoutes(ports, false),
  };
}
