// Opens connections to URLs that API users have chosen. The IP address is checked when the host
// name is resolved, and again after the socket has connected. Keeps no state.

import { isIPv6, type LookupFunction, type Socket } from "node:net";
import type { buildConnector } from "undici";
import { hostOf, isAddress } from "../lib/address.ts";

/** Resolves a host name to its addresses. Rejects if the name has no address. */
export type Resolve = (host: string) => Promise<readonly string[]>;

/** Returns the reason for refusing a request to an IP address, or `undefined` if it is allowed. */
type Judge = (address: string, isEncrypted: boolean) => string | undefined;

export class RefusedAddress extends Error {}

const CONNECT_MS = 5000;

/** Creates a function that opens connections, using the HTTP client's connectors. */
export type CreateConnector = (build: typeof buildConnector) => buildConnector.connector;

export function connectorCreator(judge: Judge, resolve: Resolve): CreateConnector {
  return (build) => {
    const options = { timeout: CONNECT_MS, maxCachedSessions: 0, allowH2: false };
    // There is one connector for each scheme, because the rules for an address depend on the
    // scheme.
    const connectors = [true, false].map((isEncrypted) =>
      build({ ...options, lookup: createLookup(judge, resolve, isEncrypted) }),
    );
    return (target, callback) => {
      const isEncrypted = target.protocol === "https:";
      const host = hostOf(target);
      // Node.js does not call `lookup` for an IP address, so an IP address is checked here.
      const refusal = isAddress(host) ? judge(host, isEncrypted) : undefined;
      if (refusal !== undefined) return callback(new RefusedAddress(refusal), null);
      connectors[isEncrypted ? 0 : 1]?.(target, (error, socket) => {
        if (error !== null || socket === null)
          return callback(error ?? new Error("The connection could not be opened"), null);
        const refused = connectedRefusal(judge, socket, isEncrypted);
        if (refused === undefined) return callback(null, socket);
        socket.destroy();
        callback(new RefusedAddress(refused), null);
      });
    };
  };
}

function connectedRefusal(judge: Judge, { remoteAddress }: Socket, isEncrypted: boolean) {
  return remoteAddress === undefined
    ? "The remote address of the connection is unknown"
    : judge(remoteAddress, isEncrypted);
}

/**
 * Returns a function that resolves a host name. The function fails if one of the addresses is
 * refused.
 */
function createLookup(judge: Judge, resolve: Resolve, isEncrypted: boolean): LookupFunction {
  return (host, options, callback) => {
    resolve(host).then(
      (addresses) => {
        const refusal = addresses
          .map((address) => judge(address, isEncrypted))
          .find((reason) => reason !== undefined);
        if (refusal !== undefined) return callback(new RefusedAddress(refusal), "", 0);
        const all = addresses.map((address) => ({ address, family: isIPv6(address) ? 6 : 4 }));
        if (options.all) callback(null, all);
        else callback(null, all[0]?.address ?? "", all[0]?.family);
      },
      (error: Error) => callback(error, "", 0),
    );
  };
}
