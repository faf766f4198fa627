/** How a client reaches its sidecar: address, credentials, defaults. */
import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import * as check from './arguments.js';
import { InvalidArgumentError } from './errors.js';
import { ProcessWarnings } from './process-warnings.js';
import { tell } from './logging.js';
import type { ClientOptions, Logger, TlsOptions } from './values.js';

const DEFAULT_ADDRESS = '127.0.0.1:7650';
const DEFAULT_TIMEOUT_MS = 10_000;
const DEFAULT_CONNECT_TIMEOUT_MS = 3_000;
const LOCAL_HOSTS: ReadonlySet<string> = new Set(['127.0.0.1', 'localhost', '[::1]']);

const CLIENT: Readonly<Record<keyof ClientOptions, true>> = {
  address: true,
  token: true,
  tls: true,
  timeoutMs: true,
  connectTimeoutMs: true,
  failOpen: true,
  logger: true,
};
const TLS: Readonly<Record<keyof TlsOptions, true>> = {
  caFile: true,
  ca: true,
  certFile: true,
  cert: true,
  keyFile: true,
  key: true,
  serverName: true,
};

/** TLS with everything read and checked. */
export interface TlsSettings {
  readonly ca: Buffer | undefined;
  readonly cert: Buffer | undefined;
  readonly key: Buffer | undefined;
  readonly serverName: string | undefined;
}

/** Where a sidecar listens. */
export type Place = { readonly path: string } | { readonly host: string; readonly port: number };

/** Checked settings of one client. */
export interface Settings {
  /** As the caller wrote it. */
  readonly address: string;
  readonly place: Place;
  readonly tls: TlsSettings | undefined;
  readonly token: string;
  readonly timeoutMs: number;
  readonly connectTimeoutMs: number;
  readonly failOpen: boolean;
  readonly logger: Logger;
}

/**
 * Checks a client's options and fills in the defaults.
 *
 * @throws InvalidArgumentError where an option makes no sense, or a token would travel unencrypted
 *     to another machine.
 */
export function settingsOf(options: ClientOptions | string | undefined): Settings {
  const given = check.options<ClientOptions>(
    typeof options === 'string' ? { address: options } : options,
    CLIENT,
  );
  const address = check.text(
    given['address'] ?? fromEnvironment('SEMANTICRECALL_ADDRESS') ?? DEFAULT_ADDRESS,
    'address',
  );
  const token = check.text(
    given['token'] ?? fromEnvironment('SEMANTICRECALL_TOKEN') ?? '',
    'token',
  );
  const place = placeOf(address);
  const tls = tlsOf(given['tls']);
  checkToken(token, address, place, tls !== undefined);
  return {
    address,
    place,
    tls,
    token,
    timeoutMs: check.milliseconds(given['timeoutMs'] ?? DEFAULT_TIMEOUT_MS, 'timeoutMs'),
    connectTimeoutMs: check.milliseconds(
      given['connectTimeoutMs'] ?? DEFAULT_CONNECT_TIMEOUT_MS,
      'connectTimeoutMs',
    ),
    failOpen: check.flag(given['failOpen'] ?? true, 'failOpen'),
    logger: loggerOf(given['logger']),
  };
}

/** A variable of the environment; an empty one is as if it were not there. */
function fromEnvironment(name: string): string | undefined {
  const value = process.env[name];
  return value === '' ? undefined : value;
}

function checkToken(token: string, address: string, place: Place, encrypted: boolean): void {
  if (token === '') return;
  if (!/^[\x21-\x7e]+$/.test(token)) {
    throw InvalidArgumentError.of('token', 'must be visible ASCII without spaces');
  }
  const local = 'path' in place || LOCAL_HOSTS.has(place.host) || place.host === '::1';
  if (!encrypted && !local) {
    const advice = `would travel to ${address} in plain text; pass tls: { caFile }`;
    throw InvalidArgumentError.of('token', advice);
  }
}

function placeOf(address: string): Place {
  if (address.startsWith('unix:')) {
    const path = address.slice('unix:'.length).replace(/^\/\//, '');
    if (path === '') throw InvalidArgumentError.of('address', '`unix:` needs the path of a socket');
    return { path };
  }
  if (address.includes('://')) {
    const advice = 'must be HOST:PORT or unix:/path/to.sock, without a scheme such as "http://"';
    throw InvalidArgumentError.of('address', advice);
  }
  const colon = address.lastIndexOf(':');
  const host = address.slice(0, Math.max(colon, 0)).replace(/^\[(.*)\]$/, '$1');
  const port = address.slice(colon + 1);
  if (host === '' || !/^\d{1,5}$/.test(port) || Number(port) === 0 || Number(port) > 65_535) {
    throw InvalidArgumentError.of('address', 'must be HOST:PORT or unix:/path/to.sock');
  }
  return { host, port: Number(port) };
}

function tlsOf(value: unknown): TlsSettings | undefined {
  if (value === undefined || value === false) return undefined;
  if (value === true) {
    return { ca: undefined, cert: undefined, key: undefined, serverName: undefined };
  }
  const given = check.options<TlsOptions>(check.fields(value, 'tls'), TLS, 'tls');
  const ca = pem(given, 'ca', 'caFile');
  const cert = pem(given, 'cert', 'certFile');
  for (const certificate of [ca, cert]) {
    if (certificate !== undefined) checkCertificate(certificate);
  }
  const key = pem(given, 'key', 'keyFile');
  if ((cert === undefined) !== (key === undefined)) {
    throw InvalidArgumentError.of('tls', 'a certificate and its key go together');
  }
  const serverName = given['serverName'];
  return {
    ca,
    cert,
    key,
    serverName: serverName === undefined ? undefined : check.text(serverName, 'tls.serverName'),
  };
}

function pem(given: check.Fields, name: string, fileName: string): Buffer | undefined {
  const content = given[name];
  const file = given[fileName];
  if (content !== undefined && file !== undefined) {
    throw InvalidArgumentError.of(`tls.${name}`, `give it or ${fileName}, not both`);
  }
  const field = `tls.${content === undefined ? fileName : name}`;
  let bytes: Buffer;
  if (content !== undefined) {
    bytes =
      typeof content === 'string'
        ? Buffer.from(content)
        : Buffer.from(check.octets(content, field));
  } else if (file !== undefined) {
    bytes = contentOf(check.text(file, field), field);
  } else {
    return undefined;
  }
  if (!bytes.includes('-----BEGIN ')) throw InvalidArgumentError.of(field, 'is not PEM');
  return bytes;
}

/** OpenSSL itself passes over authorities that it cannot read, and then trusts nobody. */
function checkCertificate(bytes: Buffer): void {
  try {
    new X509Certificate(bytes);
  } catch {
    throw InvalidArgumentError.of('tls', 'holds no certificate that can be read');
  }
}

function contentOf(path: string, field: string): Buffer {
  try {
    return readFileSync(path);
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : 'unreadable';
    throw InvalidArgumentError.of(field, `cannot read ${path}: ${code}`);
  }
}

function loggerOf(value: unknown): Logger {
  if (value === undefined) return new ProcessWarnings();
  if (isLogger(value)) {
    return {
      warn: (message, fields) => {
        tell(value, 'warn', message, fields);
      },
    };
  }
  throw InvalidArgumentError.of('logger', 'must be an object with a method warn(message, fields)');
}

function isLogger(value: unknown): value is Logger {
  return (
    typeof value === 'object' &&
    value !== null &&
    'warn' in value &&
    typeof value.warn === 'function'
  );
}
