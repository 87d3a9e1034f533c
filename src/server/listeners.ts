// The listeners of a node: one address for backends and one for clients, or one for both. State: none.

import type { Config } from "../config/schema.ts";
import type { Gateway } from "../gateway/endpoint.ts";
import { type Address, parseAddress, sameAddress } from "../lib/address.ts";
import { roomLogger } from "../observe/logger.ts";
import { createListener } from "../transport/listener.ts";
import type { HttpEndpoint, Listener, TlsFiles } from "../transport/types.ts";
import type { Node } from "./node.ts";
import { StartError } from "./start-error.ts";

/** Equal addresses: one listener serves both. */
export function createListeners(
  { config, logger }: Node,
  endpoints: {
    readonly http: HttpEndpoint;
    /** Of a listener for clients only. */
    readonly viewers: HttpEndpoint;
    readonly sockets: Gateway["endpoint"];
  },
): { readonly api: Listener; readonly client: Listener } {
  const { http, viewers, sockets } = endpoints;
  const log = roomLogger(logger, "transport");
  const onError = (error: unknown, where: string) =>
    log.error({ err: error }, where);
  const apiAddress = addressOf(config.api.listen);
  const clientAddress = addressOf(config.client.listen);
  const apiTls = tlsFiles(config.api.tls);
  if (sameAddress(apiAddress, clientAddress)) {
    const both = createListener({
      ...apiAddress,
      tls: apiTls,
      http,
      sockets,
      onError,
    });
    return { api: both, client: both };
  }
  const tls = tlsFiles(config.client.tls);
  return {
    api: createListener({
      ...apiAddress,
      tls: apiTls,
      http,
      sockets: undefined,
      onError,
    }),
    client: createListener({
      ...clientAddress,
      tls,
      http: viewers,
      sockets,
      onError,
    }),
  };
}

/** Resolves with the port it got. Throws StartError, which names the setting to change. */
export async function startListener(
  listener: Listener,
  section: "api" | "client",
): Promise<number> {
  try {
    return await listener.start();
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    const variable = `JINDOU_${section.toUpperCase()}_LISTEN`;
    throw new StartError(
      `${reason}; set ${section}.listen (${variable}) to another address`,
    );
  }
}

export function addressOf(text: string): Address {
  const address = parseAddress(text);
  if (address === undefined) throw new Error(`${text} is no address`); // config/ has checked it
  return address;
}

function tlsFiles(tls: Config["api"]["tls"]): TlsFiles | undefined {
  if (tls.certFile === "") return undefined;
  return {
    certFile: tls.certFile,
    keyFile: tls.keyFile,
    caFile: tls.caFile || undefined,
    passphrase: tls.passphrase || undefined,
  };
}
