// Decides whether backend calls need a credential, and creates the check of clients' credentials.
// State: the users whose wrong device flag has been logged.

import { credentialRule } from "../api/protected-mode.ts";
import {
  type Credentials,
  createCredentials,
  type JwtVerifier,
  type WrongFlag,
} from "../broker/credentials.ts";
import type { UserStore } from "../broker/ports.ts";
import type { Config } from "../config/schema.ts";
import { listensBeyondLoopback } from "../lib/address.ts";
import { BoundedMap } from "../lib/bounded-map.ts";
import { type Logger, roomLogger } from "../observe/logger.ts";

const MAX_LOGGED_USERS = 1000;

/** Returns true if backend calls need a credential, and false in protected mode. */
export function requiresCredential({ api, auth }: Config): boolean {
  return credentialRule({
    listensBeyondLoopback: listensBeyondLoopback([api.listen, api.compatListen]),
    staticToken: api.token,
    authApi: auth.api,
  });
}

export function createNodeCredentials(
  config: Config,
  ports: {
    readonly verifier: JwtVerifier | undefined;
    readonly store: Pick<UserStore, "device">;
    readonly logger: Logger;
  },
): Credentials {
  const { verifier, store, logger } = ports;
  return createCredentials(config.auth.clients, verifier, {
    store,
    isNamedToClient: !requiresCredential(config),
    report: wrongFlagLog(logger),
  });
}

/** Returns a function that logs a wrong device flag, once for each user and flag. */
function wrongFlagLog(logger: Logger) {
  const log = roomLogger(logger, "broker");
  const logged = new BoundedMap<string, true>(MAX_LOGGED_USERS);
  return (wrongFlag: WrongFlag) => {
    const key = `${wrongFlag.uid} ${wrongFlag.flag}`;
    if (logged.get(key)) return;
    logged.set(key, true);
    log.info(wrongFlag, "Refused a client, because its token is for a different device flag");
  };
}
