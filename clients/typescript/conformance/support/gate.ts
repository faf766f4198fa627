import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';

/** A door in front of a sidecar: a port that can be shut, as if the sidecar were gone. */
export class Gate {
  private server: Server | undefined;
  private port = 0;
  private readonly sockets = new Set<Socket>();

  private constructor(private readonly target: string) {}

  /** An open door to `unix:PATH` or `HOST:PORT`. */
  static async to(address: string): Promise<Gate> {
    const gate = new Gate(address);
    await gate.open();
    return gate;
  }

  /** `HOST:PORT`, the same whenever it is open. */
  get address(): string {
    return `127.0.0.1:${this.port}`;
  }

  /** Lets callers through. */
  async open(): Promise<void> {
    if (this.server !== undefined) {
      return;
    }
    const server = createServer((caller) => {
      const sidecar = this.dial();
      this.keep(caller, sidecar);
      this.keep(sidecar, caller);
    });
    this.server = server;
    server.listen(this.port, '127.0.0.1');
    await once(server, 'listening');
    const address = server.address();
    this.port = typeof address === 'object' && address !== null ? address.port : this.port;
  }

  /** Refuses callers, and cuts off those who are through, before it returns. */
  shut(): void {
    this.server?.close();
    this.server = undefined;
    for (const socket of this.sockets) {
      socket.destroy();
    }
    this.sockets.clear();
  }

  private dial(): Socket {
    if (this.target.startsWith('unix:')) {
      return connect(this.target.slice('unix:'.length));
    }
    const [host, port] = this.target.split(':');
    return connect(Number(port), host);
  }

  private keep(socket: Socket, other: Socket): void {
    this.sockets.add(socket);
    socket.pipe(other);
    // A cut is what this is for.
    socket.on('error', () => {
      other.destroy();
    });
    socket.on('close', () => {
      this.sockets.delete(socket);
      other.destroy();
    });
  }
}
