// Parses redis.url: one address, or several separated by commas. Pure. Error texts never quote the
// value, because it may contain a password.

export interface RedisAddress {
  readonly hosts: readonly { readonly host: string; readonly port: number }[];
  readonly database: number;
  readonly username: string;
  readonly password: string;
  readonly tls: boolean;
}

interface Address {
  readonly host: string;
  readonly port: number;
  readonly database: number | undefined;
  readonly username: string | undefined;
  readonly password: string | undefined;
  readonly tls: boolean | undefined;
}

const DEFAULT_PORT = 6379;
const FORM =
  "redis.url must be one address like redis://user:password@host:6379/0 or rediss://…, or several separated by commas. In a user or password, write , as %2C, / as %2F, ? as %3F and # as %23.";

const PATH = /^\/?$|^\/(\d{1,6})$/;

/** Returns the addresses, or an error message about the first problem. */
export function parseRedisUrl(text: string): RedisAddress | string {
  const addresses: Address[] = [];
  for (const item of text.split(",")) {
    const address = parseAddress(item.trim());
    if (typeof address === "string") return address;
    addresses.push(address);
  }
  const differing = DIFFERENCES.find(([, field]) => valuesOf(addresses, field).length > 1);
  if (differing !== undefined)
    return `The addresses in redis.url have different ${differing[0]}. Write the same value in each address, or only in the first.`;
  return {
    hosts: addresses.map(({ host, port }) => ({ host, port })),
    database: valuesOf(addresses, "database")[0] ?? 0,
    username: valuesOf(addresses, "username")[0] ?? "",
    password: valuesOf(addresses, "password")[0] ?? "",
    tls: valuesOf(addresses, "tls")[0] ?? false,
  };
}

const DIFFERENCES = [
  ["databases", "database"],
  ["users", "username"],
  ["passwords", "password"],
  ["schemes (redis:// and rediss://)", "tls"],
] as const;

function valuesOf<Field extends keyof Address>(
  addresses: readonly Address[],
  field: Field,
): readonly Exclude<Address[Field], undefined>[] {
  const values = new Set(addresses.map((address) => address[field]));
  return [...values].filter((value) => value !== undefined) as Exclude<Address[Field], undefined>[];
}

function parseAddress(text: string): Address | string {
  const hasScheme = text.includes("://");
  const address = hasScheme ? text : `redis://${text}`;
  if (!URL.canParse(address)) return FORM;
  const url = new URL(address);
  if (url.hostname === "") return FORM;
  if (url.protocol !== "redis:" && url.protocol !== "rediss:")
    return "redis.url must begin with redis:// or rediss://.";
  if (url.search !== "" || url.hash !== "")
    return "redis.url contains a part that begins with ? or #, which is not supported. The database number is the path, as in redis://host:6379/3. In a password, write ? as %3F and # as %23.";
  const path = PATH.exec(url.pathname);
  if (path === null)
    return "redis.url must have an empty path, or a database number as its path, as in redis://host:6379/3.";
  try {
    return {
      host: url.hostname.replace(/^\[|\]$/g, ""),
      port: Number(url.port || DEFAULT_PORT),
      database: path[1] === undefined ? undefined : Number(path[1]),
      username: url.username === "" ? undefined : decodeURIComponent(url.username),
      password: url.password === "" ? undefined : decodeURIComponent(url.password),
      tls: hasScheme ? url.protocol === "rediss:" : undefined,
    };
  } catch {
    return FORM; // the user or the password has a % that does not begin a valid escape
  }
}
